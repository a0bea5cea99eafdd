//! The `sidekey-okms` binary.

fn main() -> std::process::ExitCode {
    sidekey_core::run::<sidekey_okms::Okms>()
}
