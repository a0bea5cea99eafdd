//! The `sidekey-azure` binary.

fn main() -> std::process::ExitCode {
    sidekey_core::run::<sidekey_azure::Azure>()
}
