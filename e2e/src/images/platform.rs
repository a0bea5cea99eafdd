//! What machine a binary is for, from its own header.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// A machine: its number in ELF files, and its names in images and in Rust's targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Platform {
    machine: u16,
    little_endian: bool,
    image: &'static str,
    rust: &'static str,
}

const fn platform(
    machine: u16,
    little_endian: bool,
    image: &'static str,
    rust: &'static str,
) -> Platform {
    Platform { machine, little_endian, image, rust }
}

/// Where Kubernetes runs.
const PLATFORMS: [Platform; 5] = [
    platform(62, true, "amd64", "x86_64"),
    platform(183, true, "arm64", "aarch64"),
    platform(21, true, "ppc64le", "powerpc64le"),
    platform(22, false, "s390x", "s390x"),
    platform(243, true, "riscv64", "riscv64gc"),
];

impl Platform {
    /// That of an executable file.
    pub(super) fn of(path: &Path) -> Result<Self> {
        let mut header = [0; 20];
        let mut file = File::open(path).context("cannot open it")?;
        file.read_exact(&mut header).context("it is too short for an executable")?;
        Self::parse(&header)
    }

    fn parse(header: &[u8; 20]) -> Result<Self> {
        ensure!(header.starts_with(b"\x7fELF\x02"), "it is not a 64-bit ELF file");
        let little_endian = header[5] == 1;
        let machine = [header[18], header[19]];
        let machine =
            if little_endian { u16::from_le_bytes(machine) } else { u16::from_be_bytes(machine) };
        let known = PLATFORMS
            .into_iter()
            .find(|known| known.machine == machine && known.little_endian == little_endian);
        known.with_context(|| format!("it is for a machine that we do not know ({machine})"))
    }

    pub(super) fn is_little_endian(self) -> bool {
        self.little_endian
    }

    /// The target that Rust builds for it.
    pub(super) fn rust_target(self) -> String {
        format!("{}-unknown-linux-gnu", self.rust)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "linux/{}", self.image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(order: u8, machine: [u8; 2]) -> [u8; 20] {
        let mut header = [0; 20];
        header[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, order]);
        header[18..].copy_from_slice(&machine);
        header
    }

    #[test]
    fn the_machine_is_read_in_the_files_own_byte_order() {
        let name = |order, machine| Platform::parse(&header(order, machine)).unwrap().to_string();
        assert_eq!(name(1, [62, 0]), "linux/amd64");
        assert_eq!(name(1, [183, 0]), "linux/arm64");
        assert_eq!(name(2, [0, 22]), "linux/s390x");
        Platform::parse(&header(1, [0, 22])).unwrap_err();
        Platform::parse(&header(2, [0, 62])).unwrap_err();
        Platform::parse(b"#!/bin/sh\nexit 0\n\n\n\n").unwrap_err();
    }

    #[test]
    fn this_test_is_for_the_machine_that_it_runs_on() {
        let own = Platform::of(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(own.rust, std::env::consts::ARCH.replace("riscv64", "riscv64gc"));
    }
}
