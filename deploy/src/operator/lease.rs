//! Leader election: one operator acts, others wait.
