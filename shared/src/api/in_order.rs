//! A JSON object with data-dependent member names, which keeps their order.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Values by their names, in the order in which they were written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InOrder<T>(pub Vec<(String, T)>);

impl<T> InOrder<T> {
    /// The value of this name.
    pub fn get(&self, name: &str) -> Option<&T> {
        let mut named = self.0.iter().filter(|(held, _)| held == name);
        named.next().map(|(_, value)| value)
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

impl<T> Default for InOrder<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, N: ToString> FromIterator<(N, T)> for InOrder<T> {
    fn from_iter<I: IntoIterator<Item = (N, T)>>(members: I) -> Self {
        let members = members.into_iter();
        Self(members.map(|(name, of)| (name.to_string(), of)).collect())
    }
}

impl<T: Serialize> Serialize for InOrder<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for InOrder<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Members(PhantomData))
    }
}

struct Members<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
    type Value = InOrder<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<InOrder<T>, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(InOrder(members))
    }
}
