//! The `sidekey-kmip` binary.

fn main() -> std::process::ExitCode {
    sidekey_core::run::<sidekey_kmip::Kmip>()
}
