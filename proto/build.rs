//! Compiles the .proto files in pure Rust; no system protoc is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let descriptors = protox::compile(["proto/kms_v2.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .codec_path("crate::codec::KmsCodec")
        .bytes(".")
        .btree_map(".")
        // Neither plaintext nor ciphertext must reach a log through a stray `{:?}`.
        .skip_debug([
            ".v2.EncryptRequest",
            ".v2.EncryptResponse",
            ".v2.DecryptRequest",
            ".v2.DecryptResponse",
        ])
        .compile_fds(descriptors)?;
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}
