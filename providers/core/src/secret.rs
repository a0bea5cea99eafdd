//! Bytes that are wiped when dropped and never printed.

use std::fmt;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use bytes::Bytes;
use zeroize::{Zeroize, Zeroizing};

use crate::{Error, Kind};

/// A plaintext key, token or password.
///
/// It compares in constant time, and its `Debug` shows nothing but the length. Clones share one
/// buffer, which is wiped when the last of them is dropped.
#[derive(Clone, Default)]
pub struct Secret(Bytes);

/// A message's part of a receive buffer, which is wiped with the last who shares it.
struct Received(Bytes);

impl Secret {
    /// Takes over `bytes`; the caller must not have copied them elsewhere.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Bytes::from_owner(Zeroizing::new(bytes)))
    }

    /// Takes over the plaintext of a message that was received: where it lies in the buffer that
    /// tonic read it into is wiped, unless somebody else still holds a part of that buffer. A
    /// message with no other field of bytes shares it with nobody.
    pub fn received(bytes: Bytes) -> Self {
        Self(Bytes::from_owner(Received(bytes)))
    }

    /// The same buffer, for a message that is to be sent.
    pub fn to_bytes(&self) -> Bytes {
        self.0.clone()
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

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Ok(mut bytes) = std::mem::take(&mut self.0).try_into_mut() {
            bytes.zeroize();
        }
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
    #![allow(clippy::unwrap_used)]

    use bytes::BytesMut;

    use super::*;
    use crate::testing::memory_at;

    const SIZE: usize = 4096;

    /// The bytes of a secret, before and after all of its holders are gone.
    fn before_and_after(secret: Secret) -> (Vec<u8>, Vec<u8>) {
        let (address, sent, clone) = (secret.expose().as_ptr(), secret.to_bytes(), secret.clone());
        drop((secret, sent));
        let before = memory_at(address, SIZE);
        drop(clone);
        (before, memory_at(address, SIZE))
    }

    /// Other threads may have written there since: single bytes prove nothing.
    fn is_wiped(memory: &[u8], byte: u8) -> bool {
        !memory.windows(16).any(|window| window.iter().all(|found| *found == byte))
    }

    #[test]
    fn what_is_held_and_sent_is_one_buffer_that_is_wiped_with_its_last_holder() {
        let (before, after) = before_and_after(Secret::new(vec![0x5a; SIZE]));
        assert_eq!(before, vec![0x5a; SIZE]);
        assert!(is_wiped(&after, 0x5a));
    }

    #[test]
    fn what_was_received_is_wiped_where_it_was_read() {
        // As tonic does: a message is a part of a buffer, which is gone when the message is whole.
        let mut buffer = BytesMut::with_capacity(2 * SIZE);
        buffer.extend_from_slice(b"head");
        buffer.extend_from_slice(&[0xa5; SIZE]);
        let plaintext = buffer.split().freeze().slice(4..);
        drop(buffer);
        let (before, after) = before_and_after(Secret::received(plaintext));
        assert_eq!(before, vec![0xa5; SIZE]);
        assert!(is_wiped(&after, 0xa5));
    }

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
