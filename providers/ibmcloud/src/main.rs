//! The `sidekey-ibmcloud` binary.

fn main() -> std::process::ExitCode {
    sidekey_core::run::<sidekey_ibmcloud::IbmCloud>()
}
