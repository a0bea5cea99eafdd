//! Promises that need pods: a whole cluster of one node, with kubelet and containerd.
//!
//! The modules say what a test takes, and so how many `cargo verify` runs side by side:
//! `hosted` a node with a control plane on it, `managed` a control plane on the node with the
//! operator, `machine` everything. What is in `long` begins first: begun last, it would run on
//! alone. What is in `full` runs in `cargo verify --all`.
//!
//! All `managed` tests of one process share one node and one operator: run as one process they
//! start it once, and each alone it still works.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod hosted {
    mod cli_inject;
    mod cli_rotate;
    mod hosted_shim;
    pub(crate) mod operator_fleet;

    mod long {
        mod standalone;
    }
}

mod managed {
    mod admission;
    mod operator_hosted;
    pub(crate) mod operator_openshift;
    mod operator_states;
    pub(crate) mod operator_vendors;
}

mod full {
    mod hosted {
        mod cluster;
        mod hosted_native;
        mod hosted_vendors;
    }

    mod managed {
        mod operator_openshift;
        mod operator_vendors;
    }

    mod machine {
        mod operator_fleet;
    }
}
