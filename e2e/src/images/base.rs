//! What a program that loads libraries needs around it: the loader, the C library, and those that
//! vendors' libraries are linked with, as Debian's packages have them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// The directory of it beside the binary.
pub(super) const FOLDER: &str = "base";

/// Of the packages libc6, libgcc-s1 and libstdc++6. The C library's are one by now, and older
/// libraries ask for its former parts.
const LIBRARIES: [&str; 8] = [
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "libresolv.so.2",
    "librt.so.1",
    "libstdc++.so.6",
];

/// Copies it from this machine, which must be of the kind that the binary is for; its size.
pub(super) fn write(to: &Path) -> Result<u64> {
    let arch = std::env::consts::ARCH;
    let (loader, folder) = match arch {
        "x86_64" => ("lib64/ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu"),
        "aarch64" => ("lib/ld-linux-aarch64.so.1", "lib/aarch64-linux-gnu"),
        _ => ("", ""),
    };
    ensure!(!loader.is_empty(), "where the loader of {arch} lies is not known here");
    let mut size = copy(loader, to)?;
    for library in LIBRARIES {
        size += copy(&format!("{folder}/{library}"), to)?;
    }
    Ok(size)
}

fn copy(name: &str, to: &Path) -> Result<u64> {
    let (from, to) = (Path::new("/").join(name), to.join(name));
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    let missing =
        || format!("{}: install libc6, libgcc-s1 and libstdc++6 of Debian", from.display());
    fs::copy(&from, &to).with_context(missing)
}
