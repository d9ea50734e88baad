//! The documents of `/v1/`, as the service writes them and commands read them (CONTROL-2). The
//! OpenAPI file describes them, and a test compares the two.

pub mod process;
pub mod settings;
