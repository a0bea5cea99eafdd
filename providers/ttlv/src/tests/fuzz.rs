//! Answers that are made of good ones by chance. `cargo verify --all` does it for as long as
//! `SIDEKEY_FUZZ_SECONDS` says, and else it is done a fixed number of times. `SIDEKEY_FUZZ_SEED` has
//! it done again. (libFuzzer takes a nightly compiler, and this needs no coverage to get everywhere:
//! the parser has ten branches.)

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use super::*;
use crate::client::crypted;
use crate::protocol::payload;

const ROUNDS: u64 = 4_000;

/// Xorshift: what it does can be done again from its seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit.max(1)).unwrap()).unwrap()
    }

    fn byte(&mut self) -> u8 {
        const LIKED: [u8; 12] = [0, 1, 2, 3, 5, 7, 8, 9, 10, 0x42, 0x7f, 0xff];
        let one = u8::try_from(self.below(256)).unwrap();
        if self.below(2) == 0 { one } else { LIKED[self.below(LIKED.len())] }
    }

    /// One change of a message.
    fn change(&mut self, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
        let at = self.below(bytes.len());
        match self.below(6) {
            0 => bytes.truncate(at),
            1 if at < bytes.len() => drop(bytes.remove(at)),
            2 => bytes.insert(at, self.byte()),
            // A length, or a word of a value.
            3 => {
                let word = at / 8 * 8 + 4;
                if let Some(word) = bytes.get_mut(word..word + 4) {
                    word.copy_from_slice(&[0, 0, self.byte() & 1, self.byte()]);
                }
            }
            4 => {
                let other = &others[self.below(others.len())];
                let from = self.below(other.len()) / 8 * 8;
                drop(bytes.splice(at / 8 * 8.., other[from..].iter().copied()));
            }
            _ if at < bytes.len() => bytes[at] = self.byte(),
            _ => {}
        }
    }
}

/// Everything that is made of an answer.
fn read(bytes: &[u8]) {
    fn walk(item: Item<'_>) -> usize {
        let _ = (item.number(), item.text(), item.bytes());
        1 + item.items().map(walk).sum::<usize>()
    }
    if let Ok(item) = Item::parse(bytes) {
        assert!(walk(item) <= bytes.len() / 8);
    }
    for operation in [Operation::Locate, Operation::Encrypt, Operation::DiscoverVersions] {
        match payload(bytes, operation, "key-1") {
            Ok(payload) => assert!(crypted(payload).expose().len() <= bytes.len()),
            Err(error) => assert!(error.report().len() < 2000, "{}", error.report().len()),
        }
    }
}

#[test]
fn no_answer_that_chance_makes_is_a_crash() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    // Of a seed of zero nothing comes.
    let seed = number("SIDEKEY_FUZZ_SEED");
    let seed = seed.unwrap_or_else(|| RandomState::new().build_hasher().finish()) | 1;
    let text = "refused: ".repeat(40);
    let mut good: Vec<Vec<u8>> = [0x08, 0x0b, 0x1e, 0x1f, 0x20]
        .map(|code| {
            answer(code, |payload| {
                payload.version(4);
                payload.text(tag::UNIQUE_IDENTIFIER, "key-1");
                attributes(payload, 2, 2, 3, 0xc);
                payload.bytes(tag::DATA, b"secret");
                payload.bytes(tag::AEAD_TAG, &TAG);
            })
        })
        .to_vec();
    good.push(refusal(0x20, 0x100, &text));
    good.iter().for_each(|bytes| read(bytes));
    println!("seed {seed}");
    let mut chance = Chance(seed);
    let seconds = number("SIDEKEY_FUZZ_SECONDS");
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut rounds = 0;
    while end.map_or(rounds < ROUNDS, |end| Instant::now() < end) {
        let mut bytes = good[chance.below(good.len())].clone();
        for _ in 0..=chance.below(5) {
            chance.change(&mut bytes, &good);
        }
        read(&bytes);
        rounds += 1;
    }
    println!("{rounds} answers");
}
