//! Measuring a KMS v2 plugin as kube-apiserver meets it: the library behind `cargo xbench`.
//!
//! For: figures that can be compared between versions, providers and arrangements, all taken
//! in one run on one machine. Refuses: to measure what answers wrongly (every ciphertext is
//! checked first), and to let equal requests hide cost: the pool's ciphertexts all differ.
//! The one invariant: the plugin runs in a process of its own, so that its memory and CPU
//! time are its own; the client's cost is part of every latency.
//!
//! A new thing to measure is one function in [`subject`] that says what to start. Plugins for
//! a KMS elsewhere are measured against a fake one ([`fake`]), which answers at once.

mod bars;
pub mod command;
mod direct;
mod drive;
mod elf;
pub mod fake;
mod figures;
mod memory;
pub mod migrate;
mod plugin;
mod reach;
mod reload;
mod report;
mod server;
pub mod subject;
mod watch;

pub use command::Work;
pub use drive::{Companion, Counter, Effort, LoadFigures, Target, measure_load};
pub use elf::Binary;
pub use figures::{Bar, Beside, Cell, Direction, Figures, Judgement, Spread, judge};
pub use memory::{Memory, cpu_time};
pub use migrate::Turns;
pub use reach::Reach;
pub use reload::{Reload, Reloads};
pub use report::table;
pub use server::Server;
pub use subject::Subject;
