//! The `sidekey-gcp` binary.

fn main() -> std::process::ExitCode {
    sidekey_core::run::<sidekey_gcp::Gcp>()
}
