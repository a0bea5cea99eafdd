//! The `sidekey-shim` binary.

fn main() -> std::process::ExitCode {
    sidekey_shim::run()
}
