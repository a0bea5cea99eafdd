//! Gets sidecars into the pods of kube-apiserver, and waits until they are.
