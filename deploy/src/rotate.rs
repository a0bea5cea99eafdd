//! Rotation: from the key that writes to a new one, in the one order in which nothing becomes
//! unreadable.
//!
//! ```text
//! Preflight ──▶ ReadOnlyDeploy ──▶ WritePromote ──▶ Migrating ──▶ Completed
//!      └──────────────┴── abort ──▶ Interrupted
//! ```
//! The new key goes in as a reader on every replica before any replica writes with it, because
//! what one has written all must read. Where it stands is written down before each step is taken,
//! and each step may be taken twice: whoever is killed goes on where it was.

mod drive;
mod given_up;
mod plane;
mod state;
mod store;

pub use drive::{Observer, Patience, World, abort, begin, drive};
pub use plane::{Plane, turns};
pub(crate) use state::HISTORY;
pub use state::{Past, Stage, State, Step, Turn};
pub use store::{Kept, Store};
