//! What this provider promises beyond KMS v2, at its socket: the real binary on a fake of Cloud KMS.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(dead_code, reason = "the support is shared by several test files")]

mod support;

mod promises {
    mod calls;
    mod credentials;
    mod dropin;
    mod faults;
    mod keys;
    mod recorded;
    mod usage;
}
