//! The `sidekey-pkcs11` binary.

fn main() -> std::process::ExitCode {
    sidekey_core::run::<sidekey_pkcs11::Pkcs11>()
}
