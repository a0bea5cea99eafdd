//! What an executable file is like: its size, and whether it needs anything beside it.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

/// Program header types (ELF specification, and its GNU part).
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
/// Section header type of a full symbol table.
const SHT_SYMTAB: u32 = 2;
/// Tag of an entry of the dynamic section that names a shared library.
const DT_NEEDED: u64 = 1;

/// An executable as users get it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Binary {
    /// Its size.
    pub bytes: u64,
    /// It needs no loader and no shared library, so it runs in an empty image.
    pub is_static: bool,
    /// It carries no symbol table.
    pub is_stripped: bool,
}

impl Binary {
    /// Reads a 64-bit little-endian ELF file.
    pub fn read(path: &Path) -> Result<Self> {
        let file =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&file).with_context(|| format!("{} is not a usable ELF file", path.display()))
    }

    fn parse(file: &[u8]) -> Result<Self> {
        ensure!(file.starts_with(b"\x7fELF\x02\x01"), "not 64-bit little-endian ELF");
        let programs = table(file, 32, 54, 56).context("its program headers are cut off")?;
        let sections = table(file, 40, 58, 60).context("its section headers are cut off")?;
        let interpreter = programs.iter().any(|header| word(header, 0) == Some(PT_INTERP));
        let mut needed = false;
        for header in programs.iter().filter(|header| word(header, 0) == Some(PT_DYNAMIC)) {
            let section = long(header, 8).zip(long(header, 32));
            let dynamic = section.and_then(|(start, size)| slice(file, start, size));
            let dynamic = dynamic.context("its dynamic section is cut off")?;
            needed |= dynamic.chunks_exact(16).any(|entry| long(entry, 0) == Some(DT_NEEDED));
        }
        Ok(Self {
            bytes: file.len() as u64,
            is_static: !interpreter && !needed,
            is_stripped: !sections.iter().any(|header| word(header, 4) == Some(SHT_SYMTAB)),
        })
    }
}

/// The headers of a table whose offset, entry size and count stand at these places.
fn table(file: &[u8], offset: usize, size: usize, count: usize) -> Option<Vec<&[u8]>> {
    let (start, size, count) = (long(file, offset)?, half(file, size)?, half(file, count)?);
    (0..u64::from(count))
        .map(|index| slice(file, start.saturating_add(index * u64::from(size)), size.into()))
        .collect()
}

fn slice(file: &[u8], start: u64, size: u64) -> Option<&[u8]> {
    let start = usize::try_from(start).ok()?;
    let end = start.checked_add(usize::try_from(size).ok()?)?;
    file.get(start..end)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied()
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_le_bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with one program header and one section header.
    fn file(program: u32, section: u32) -> Vec<u8> {
        let mut file = vec![0; 256];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[32] = 64; // program headers
        file[54] = 56;
        file[56] = 1;
        file[40] = 128; // section headers
        file[58] = 64;
        file[60] = 1;
        file[64..68].copy_from_slice(&program.to_le_bytes());
        file[72] = 200; // the dynamic section: one entry, DT_NEEDED
        file[96] = 16;
        file[132..136].copy_from_slice(&section.to_le_bytes());
        file
    }

    #[test]
    fn a_loader_or_a_library_makes_a_file_dynamic() {
        assert!(Binary::parse(&file(1, 1)).unwrap().is_static);
        assert!(!Binary::parse(&file(PT_INTERP, 1)).unwrap().is_static);
        let mut dynamic = file(PT_DYNAMIC, 1);
        assert!(Binary::parse(&dynamic).unwrap().is_static);
        dynamic[200] = 1;
        assert!(!Binary::parse(&dynamic).unwrap().is_static);
    }

    #[test]
    fn a_symbol_table_is_seen() {
        assert!(Binary::parse(&file(1, 1)).unwrap().is_stripped);
        assert!(!Binary::parse(&file(1, SHT_SYMTAB)).unwrap().is_stripped);
    }

    #[test]
    fn no_cut_off_file_is_accepted_or_panics() {
        let whole = file(PT_DYNAMIC, 1);
        for length in 0..192 {
            Binary::parse(&whole[..length]).unwrap_err();
        }
        Binary::parse(b"#!/bin/sh\n").unwrap_err();
    }

    #[test]
    fn this_test_is_not_stripped() {
        assert!(!Binary::read(&std::env::current_exe().unwrap()).unwrap().is_stripped);
    }
}
