//! The `sidekey-example` binary.

fn main() -> std::process::ExitCode {
    sidekey_core::run::<sidekey_example::Example>()
}
