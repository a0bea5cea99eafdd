//! The build script of every crate with a program that is shipped: packs the relocations of the
//! static binaries, where the C library can unpack them, and leaves symbols out of what is released.
//!
//! Unpacked they are a twentieth of the file, and every start reads all of it: packed, a
//! running shim is a fifth of a MiB smaller, and an AWS provider half a MiB. glibc can do it since
//! 2.36.

use std::process::Command;

fn main() {
    // Besides its own source, which cargo looks at anyway.
    println!("cargo:rerun-if-changed=Cargo.toml");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let native = variable("HOST") == variable("TARGET");
    // What the profile says of `strip` is lost for packages with an opt-level of their own.
    if variable("PROFILE") == "release" && variable("CARGO_CFG_TARGET_OS") == "linux" {
        println!("cargo:rustc-link-arg-bins=-Wl,--strip-all");
    }
    let gnu = variable("CARGO_CFG_TARGET_ENV") == "gnu";
    let is_static = variable("CARGO_CFG_TARGET_FEATURE").split(',').any(|one| one == "crt-static");
    if native && gnu && is_static && glibc().is_some_and(|version| version >= (2, 36)) {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of the C library, which is the one that is linked in.
fn glibc() -> Option<(u32, u32)> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
