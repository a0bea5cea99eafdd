//! The `sidekey-local` binary.

fn main() -> std::process::ExitCode {
    sidekey_core::run::<sidekey_local::Local>()
}
