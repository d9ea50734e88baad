//! shared
