//! The operator: see [`sidekey::operator`].

fn main() -> std::process::ExitCode {
    sidekey::operator::run::main()
}
