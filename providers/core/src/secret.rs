//! Bytes that are wiped when dropped and never printed.

use std::fmt;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use crate::{Error, Kind};

/// A plaintext key, token or password.
///
/// It compares in constant time, wipes itself on drop, and its `Debug` shows
/// nothing but the length.
#[derive(Clone, Default)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes over `bytes`; the caller must not have copied them elsewhere.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Random bytes, fit for a key.
    pub fn random(len: usize) -> Result<Self, Error> {
        let mut bytes = vec![0; len];
        SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_| Error::new(Kind::Bug, "the system has no random numbers"))?;
        Ok(Self::new(bytes))
    }

    /// The bytes themselves: keep them no longer than needed.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// The text of a token or password file, without surrounding white space.
    pub fn as_text(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok().map(str::trim)
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_nothing_but_the_length() {
        let secret = Secret::new(b"hunter2".to_vec());
        assert_eq!(format!("{secret:?}"), "Secret(7 bytes)");
        assert_eq!(format!("{secret:#?}"), "Secret(7 bytes)");
    }

    #[test]
    fn secrets_of_other_length_or_content_differ() {
        let a = Secret::new(vec![1, 2, 3]);
        assert_eq!(a, Secret::new(vec![1, 2, 3]));
        assert_ne!(a, Secret::new(vec![1, 2]));
        assert_ne!(a, Secret::new(vec![1, 2, 4]));
    }
}
