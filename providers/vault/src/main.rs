//! The `sidekey-vault` binary.

fn main() -> std::process::ExitCode {
    sidekey_core::run::<sidekey_vault::Vault>()
}
