//! How the data plane passes a request under `/_waf/` to the control plane, after the ladder.
//!
//! One function type. The data plane calls it once without a body. If the function asks for the
//! body, the data plane reads it, bounded, and calls again.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};

use crate::client::Client;
use crate::verdict::{Action, History};

/// A request under `/_waf/`.
#[derive(Clone, Debug)]
pub struct OwnRequest {
    /// Its method.
    pub method: Method,
    /// The path as the client wrote it.
    pub path: String,
    /// The query, without the question mark.
    pub query: Option<String>,
    /// The `Authorization` field, if there is exactly one.
    pub authorization: Option<http::HeaderValue>,
    /// The client that sent it; none if it did not come over the data plane.
    pub client: Option<Client>,
    /// The request's id, for problem documents.
    pub request_id: String,
    /// The bytes of the body according to `Content-Length`, if there is one.
    pub announced: Option<u64>,
    /// The body, once [`Step::ReadBody`] asked for it.
    pub body: Option<Body>,
}

/// A body that was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// The whole of it.
    Whole(Bytes),
    /// It is larger than was allowed.
    TooLarge,
    /// It did not come to its end.
    CutOff,
}

/// The response to a request under `/_waf/`.
#[derive(Debug)]
pub struct OwnResponse {
    /// Status code.
    pub status: StatusCode,
    /// Fields besides `Content-Length` and `Date`.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// Log, metric: `answered`, `unauthorized` or `not_found`.
    pub action: Action,
    /// What the client's history counts; metrics answers count as neither (CHECK-4).
    pub history: History,
}

/// Called once with the response, from any thread.
pub type Respond = Box<dyn FnOnce(OwnResponse) + Send>;

/// The next step of the data plane for such a request.
#[derive(Debug)]
pub enum Step {
    /// Send this response; [`Respond`] is not called.
    Done(OwnResponse),
    /// Read at most this many bytes of the body and call again; [`Respond`] is not called.
    ReadBody {
        /// Bytes allowed.
        limit: usize,
    },
    /// [`Respond`] will be called. If it is dropped instead, the answer is 503.
    Later,
}

/// Answers requests under `/_waf/`. Never blocks.
pub type Handover = Arc<dyn Fn(OwnRequest, Respond) -> Step + Send + Sync>;
