//! The one reconcile core.
