//! What is in an image, and what is said of it.

use std::fs;

use serde_json::{Value, json};
use sidekey_e2e::binaries;
use sidekey_e2e::images::ALLOWANCE;

use super::built::{Built, EPOCH, REVISION, all, tar};

const ROOTS: &str = "etc/ssl/certs/ca-certificates.crt";

fn layer_path(image: &Built) -> &str {
    image.layer.to_str().unwrap()
}

#[tokio::test]
async fn an_image_holds_its_binary_and_the_ca_roots_and_nothing_else() {
    for image in all().await {
        let list = ["--list", "--verbose", "--numeric-owner", "--full-time", "--file"];
        let listing = tar(&[&list[..], &[layer_path(image)]].concat());
        let entries: Vec<(&str, &str, String, &str)> = listing
            .lines()
            .map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                (words[0], words[1], words[3..5].join(" "), words[5])
            })
            .collect();
        let (folder, time) = ("drwxr-xr-x", "2023-11-14 22:13:20");
        let expected = [
            (folder, "etc/"),
            (folder, "etc/ssl/"),
            (folder, "etc/ssl/certs/"),
            ("-r--r--r--", ROOTS),
            ("-r-xr-xr-x", image.name.as_str()),
        ];
        // What a program needs that loads libraries has a test of its own.
        if image.said["base_bytes"] != 0 {
            continue;
        }
        // Everybody may read and run, nobody owns or may change it, and no time is the clock's.
        let expected = expected.map(|(mode, name)| (mode, "0/0", time.to_owned(), name));
        assert_eq!(entries, expected, "{}", image.name);
        assert_eq!(EPOCH, 1_700_000_000, "that is the time above");
    }
}

#[tokio::test]
async fn a_program_that_loads_libraries_has_a_loader_and_what_vendors_are_linked_with() {
    let loading: Vec<_> =
        all().await.iter().filter(|image| image.said["base_bytes"] != 0).collect();
    assert_eq!(loading.len(), binaries::dynamic().unwrap().len());
    for image in loading {
        let listing = tar(&["--list", "--file", layer_path(image)]);
        let files: Vec<&str> = listing.lines().filter(|name| !name.ends_with('/')).collect();
        for needed in ["ld-linux", "libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libstdc++.so.6"] {
            assert!(files.iter().any(|name| name.contains(needed)), "{needed}: {files:?}");
        }
        assert_eq!(files.len(), 11, "loader, eight libraries, CA roots, itself: {files:?}");
    }
}

#[tokio::test]
async fn the_binary_in_an_image_is_the_one_that_was_given() {
    for image in all().await {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().to_str().unwrap();
        tar(&["--extract", "--file", layer_path(image), "--directory", to, &image.name]);
        let same =
            fs::read(dir.path().join(&image.name)).unwrap() == fs::read(&image.binary).unwrap();
        assert!(same, "{}", image.name);
    }
}

#[tokio::test]
async fn the_configuration_names_a_numeric_user_the_binary_and_where_it_is_from() {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    };
    for image in all().await {
        let Built { name, config, manifest, .. } = image;
        assert_eq!(config["architecture"], architecture, "{name}");
        assert_eq!(config["os"], "linux");
        assert_eq!(config["created"], "2023-11-14T22:13:20Z");
        let run = &config["config"];
        assert_eq!(run["User"], "65532:65532");
        assert_eq!(run["Entrypoint"], json!([format!("/{name}")]));
        for unwanted in ["Cmd", "Shell", "Volumes", "ExposedPorts", "WorkingDir", "OnBuild"] {
            assert_eq!(run[unwanted], Value::Null, "{name}: {unwanted}");
        }
        let version = env!("CARGO_PKG_VERSION");
        let labels = json!({
            "org.opencontainers.image.title": name,
            "org.opencontainers.image.version": version,
            "org.opencontainers.image.revision": REVISION,
            "org.opencontainers.image.licenses": "Apache-2.0",
        });
        assert_eq!(run["Labels"], labels, "{name}");
        assert_eq!(image.said["reference"], format!("localhost/{name}:{version}"));
        assert_eq!(manifest["mediaType"], "application/vnd.oci.image.manifest.v1+json");
    }
}

#[tokio::test]
async fn an_image_is_at_most_half_a_mebibyte_larger_than_its_binary() {
    for image in all().await {
        let layer = fs::metadata(&image.layer).unwrap().len();
        let binary = fs::metadata(&image.binary).unwrap().len();
        let whole = image.said["image_bytes"].as_u64().unwrap();
        assert_eq!(image.said["binary_bytes"], binary);
        assert!(whole > layer, "{}: the image has more than its layer", image.name);
        let base = image.said["base_bytes"].as_u64().unwrap();
        assert!(whole - binary - base <= ALLOWANCE, "{}: {whole} - {binary}", image.name);
    }
    assert_eq!(ALLOWANCE, 524_288);
}

#[tokio::test]
async fn the_ca_roots_are_those_of_the_package_and_none_of_this_machine() {
    for image in all().await {
        let bundle = tar(&["--extract", "--to-stdout", "--file", layer_path(image), ROOTS]);
        let mut packaged = 0;
        for entry in fs::read_dir("/usr/share/ca-certificates/mozilla").unwrap() {
            let root = fs::read_to_string(entry.unwrap().path()).unwrap();
            assert!(bundle.contains(root.trim()), "{}", image.name);
            packaged += 1;
        }
        assert!(packaged > 100, "{packaged}");
        assert_eq!(bundle.matches("-----BEGIN CERTIFICATE-----").count(), packaged);
    }
}
