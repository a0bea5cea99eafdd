//! The `sidekey` command.

fn main() -> std::process::ExitCode {
    sidekey::cli::main()
}
