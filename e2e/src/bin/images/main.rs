//! `cargo images`: builds every image, and the bill of materials of each.
//!
//! The binaries are the release build, or those in `$SIDEKEY_BIN_DIR`. The images are the same
//! for the same binaries, CA roots, commit and buildah, wherever and whenever they are built.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use sidekey_e2e::binaries;
use sidekey_e2e::command::{self, Format};
use sidekey_e2e::images::{self, ALLOWANCE, Image, Options};

/// Builds an OCI archive and a bill of materials for every folder of images/.
#[derive(Debug, Parser)]
#[command(
    name = "cargo images",
    bin_name = "cargo images",
    after_help = "Examples:\n  cargo images\n  cargo images shim aws --dir out -o json\n  cargo images --fips\n  SIDEKEY_BIN_DIR=/path/with/binaries cargo images\n\nExit codes: 0 built, 1 failed or too large, 64 bad usage"
)]
struct Arguments {
    /// The images to build, by their folders; all if none is named
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Where the archives go [default: images in cargo's target directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Build with the FIPS module of AWS-LC, which takes CMake and Go; the tag ends in -fips
    #[arg(long)]
    fips: bool,
    /// The tag of the images [default: the version]
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
    /// What the images are said to be made from [default: git's commit]
    #[arg(long, value_name = "COMMIT")]
    revision: Option<String>,
    /// A file of CA roots for the images [default: those of Debian's ca-certificates]
    #[arg(long, value_name = "FILE")]
    ca_roots: Option<PathBuf>,
    /// How to print what was built
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

fn main() -> ExitCode {
    let arguments = match command::arguments::<Arguments>() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    binaries::build_shipped();
    if arguments.fips {
        binaries::build_fips();
    }
    command::block_on(run(&arguments))
}

async fn run(arguments: &Arguments) -> Result<ExitCode> {
    let known = images::names(&images::folder())?;
    if let Some(name) = arguments.names.iter().find(|name| !known.contains(name)) {
        let known = known.join(", ");
        return Ok(command::bad_usage(format!("there is no image {name}; there are {known}")));
    }
    let dir = match &arguments.dir {
        Some(dir) => dir.clone(),
        None => target()?.join(if arguments.fips { "images-fips" } else { "images" }),
    };
    let mut options = match Options::new(dir) {
        Ok(options) => options,
        Err(error) => return Ok(command::bad_usage(format!("{error:#}"))),
    };
    options.names.clone_from(&arguments.names);
    options.roots.clone_from(&arguments.ca_roots);
    options.tag.clone_from(&arguments.tag);
    options.fips = arguments.fips;
    if let Some(revision) = &arguments.revision {
        options.source.revision = Some(revision.clone());
    }
    let images = images::build(&options).await?;
    match arguments.output {
        Format::Text => print!("{}", table(&images)),
        Format::Json => println!("{}", serde_json::to_string_pretty(&images)?),
    }
    let mut code = ExitCode::SUCCESS;
    for image in images.iter().filter(|image| image.overhead() > ALLOWANCE) {
        let limit = mib(ALLOWANCE);
        eprintln!("error: {} is more than {limit} MiB larger than its binary", image.name);
        code = ExitCode::FAILURE;
    }
    Ok(code)
}

/// cargo's target directory: this program lies in it, below the platform and the profile.
fn target() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    let target = own.ancestors().nth(3).map(Path::to_owned);
    target.context("cannot tell cargo's target directory; name one with --dir")
}

fn table(images: &[Image]) -> String {
    let mut text = String::from("image               binary      image   difference  digest\n");
    for image in images {
        let sizes = [image.binary_bytes, image.image_bytes, image.overhead()].map(mib);
        let [binary, whole, more] = sizes;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<16} {binary:>5} MiB  {whole:>5} MiB  {more:>6} MiB  {}",
            image.name, image.digest
        );
    }
    if let Some(dir) = images.first().and_then(|image| image.archive.parent()) {
        let _ = writeln!(
            text,
            "\nIn {}: NAME.tar (OCI archive), NAME.cdx.json (CycloneDX)",
            dir.display()
        );
    }
    text
}

fn mib(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "sizes of files are far below 2^52")]
    let mib = bytes as f64 / 1_048_576.0;
    format!("{mib:.2}")
}
