//! controlplane
