//! The front ends: translate what others own into a SecretEncryption.
