//! Reads the JSON body of a POST and checks it against its schema: reports every fault at once,
//! each with its JSON pointer (ADMIN-2).

use std::marker::PhantomData;
use std::sync::LazyLock;

use serde::de::DeserializeOwned;
use serde_json::Value;
use weir_schema::{CatalogError, Schema, Violation};
use weir_shared::handover::OwnRequest;

use crate::json::{self, Strict};

use super::problem::{Fault, Problem};

/// Reads bodies of one schema.
pub(crate) struct BodyReader {
    /// Compiled when the first body arrives.
    schema: LazyLock<Result<Schema, CatalogError>>,
}

impl BodyReader {
    pub(crate) const fn new(schema: fn() -> Result<Schema, CatalogError>) -> Self {
        Self {
            schema: LazyLock::new(schema),
        }
    }

    /// Reads a body.
    ///
    /// # Errors
    /// 400 where it is not JSON, 422 where it does not fit.
    pub(crate) fn read<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, Problem> {
        let Strict(body) = json::explain(PhantomData, body).map_err(|refused| {
            match serde_json::from_slice::<Value>(body) {
                Err(error) => Problem::BadRequest(format!("the body is not JSON: {error}")),
                Ok(_) => one_fault(refused.pointer, json::sentence(&refused.error)),
            }
        })?;
        // A test compiles every schema.
        let schema = self.schema.as_ref().map_err(|error| {
            one_fault(
                String::new(),
                format!("the schema of the body is wrong: {error}"),
            )
        })?;
        if let Err(violations) = schema.validate(&body) {
            let fault = |violation: Violation| Fault {
                pointer: violation.instance_path,
                detail: violation.sentence.trim_end_matches('.').to_owned(),
            };
            return Err(Problem::DoesNotFit(
                violations.into_iter().map(fault).collect(),
            ));
        }
        serde_json::from_value(body).map_err(|error| one_fault(String::new(), error.to_string()))
    }
}

/// Refuses a request whose announced body is too long, before anything else is done for it.
pub(super) fn no_long_body(request: &OwnRequest, limit: usize) -> Result<(), Problem> {
    match request.announced {
        Some(announced) if announced > limit as u64 => Err(Problem::TooLarge { limit }),
        _ => Ok(()),
    }
}

/// The problem of a single fault.
pub(crate) fn one_fault(pointer: String, detail: String) -> Problem {
    Problem::DoesNotFit(vec![Fault { pointer, detail }])
}
