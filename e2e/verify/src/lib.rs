//! What the developer programs of this repository have in common on the command line.
//!
//! The program beside it is `cargo verify`; see `main.rs`.

pub mod command;
