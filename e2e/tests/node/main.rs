//! Promises that need pods: a whole cluster of one node, with kubelet and containerd.
//!
//! The modules say what a test takes, and so how many `cargo verify` runs side by side:
//! `hosted` a node with a control plane on it, `managed` one with the operator and a control
//! plane that it manages, `machine` everything. What is in `full` runs in `cargo verify --all`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod hosted {
    mod cli_inject;
    mod cli_rotate;
    mod hosted_shim;
    mod standalone;
}

mod managed {
    mod operator_hosted;
    mod operator_openshift;
    mod operator_page;
    mod operator_states;
    mod operator_vendors;
    mod operator_webhook;
}

mod machine {
    mod operator_fleet;
}

mod full {
    mod hosted {
        mod cluster;
        mod hosted_native;
    }
}
