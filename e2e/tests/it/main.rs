//! Promises that need processes alone: our programs, real KMS servers, etcd and kube-apiserver;
//! and the node that `cargo up` brings with it.
//!
//! The modules say what a test takes, and so how many `cargo verify` runs side by side: `light`
//! no kube-apiserver, `plane` one etcd with a kube-apiserver, `planes` two kube-apiservers and
//! the sidecars of both, `hosted` a node, `machine` everything. Each test has a process of its own, but for those of
//! a module in `shared`, which share one and what it started. What is in `full` runs in
//! `cargo verify --all` alone.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod light {
    mod aws_backends;
    mod cli_preflight;
    mod cli_publish_dir;
    mod configuration;
    mod harness;
    mod okms_rotation;
    mod programs;
    mod proxy;
    mod shim_conformance;
    mod shim_page;
    mod shim_revisions;
    mod vault_backend;

    mod shared {
        mod images;
    }
}

mod plane {
    mod cli_census;
    mod cli_doctor;
    mod cli_migrate;
    mod cli_publish;
    mod native_image;
    mod shim_adoption;
    pub(crate) mod shim_faults;
    pub(crate) mod up;
    mod vault_kubernetes;
}

mod hosted {
    mod up;
}

mod planes {
    mod aws_faults;
    mod cli_status;
    mod rotation;
    mod shim_rotation;
    mod shim_storm;
    mod vault_faults;

    mod long {
        mod vendor_matrix;
    }
}

mod full {
    mod light {
        mod azure_clients;
        mod gcp_client;
        mod ibm_backend;
        mod okms_client;
    }

    mod plane {
        mod shipped_times;
    }

    mod planes {
        mod aws_changes;
        mod shim_many_keys;
        mod vault_changes;
    }

    mod machine {
        mod release_binaries;

        mod shared {
            mod xbench;
        }
    }
}
