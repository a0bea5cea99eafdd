//! The `sidekey-aws` binary.

fn main() -> std::process::ExitCode {
    sidekey_core::run::<sidekey_aws::Aws>()
}
