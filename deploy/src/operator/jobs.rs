//! Jobs in a control plane's namespace: preflight, migration, census.
