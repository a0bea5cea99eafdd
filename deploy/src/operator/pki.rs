//! Certificates: one authority for each control plane, and one for the webhook.
