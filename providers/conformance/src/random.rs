//! Test data that differs from call to call. It guards nothing, so it need not be secret.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The state of a SplitMix64 generator, seeded differently in each process.
static STATE: LazyLock<AtomicU64> =
    LazyLock::new(|| AtomicU64::new(RandomState::new().hash_one(std::process::id())));

/// `len` bytes that no other call returns (from 8 bytes on).
pub(crate) fn bytes(len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A uid in the form of kube-apiserver's, a random UUID.
pub(crate) fn uid() -> String {
    let (high, low) = (next(), next());
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xfff,
        0x8000 | low >> 48 & 0x3fff,
        low & 0xffff_ffff_ffff,
    )
}

fn next() -> u64 {
    let step = 0x9e37_79b9_7f4a_7c15_u64;
    let mut word = STATE.fetch_add(step, Ordering::Relaxed).wrapping_add(step);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_exact_and_values_differ() {
        for len in [0, 1, 7, 8, 9, 32, 1000] {
            assert_eq!(bytes(len).len(), len);
        }
        assert_ne!(bytes(32), bytes(32));
    }

    #[test]
    fn uids_look_like_random_uuids_and_differ() {
        let uid = uid();
        let parts: Vec<usize> = uid.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{uid}");
        assert!(uid[14..].starts_with('4'), "{uid}");
        assert_ne!(uid, super::uid());
    }
}
