//! What every pass of a reconciler needs.
