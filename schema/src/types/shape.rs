//! How a family of messages is written down: its enum, and a struct for each command.

/// Makes the enum of a family and the structs of its messages. Each message has `id`, `ts` and
/// `meta` beside its own members. A member that is absent is `None`; `null` is none, but a fault.
macro_rules! messages {
    (
        $(#[$family_doc:meta])*
        $family:ident
        $(
            $(#[$doc:meta])*
            $command:literal $name:ident
            { $($(#[$needed_doc:meta])* $needed:ident: $needed_type:ty),* $(,)? }
            { $($(#[$may_doc:meta])* $may:ident: $may_type:ty),* $(,)? }
        )*
    ) => {
        $(#[$family_doc])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(tag = "command")]
        #[non_exhaustive]
        pub enum $family {
            $(
                $(#[$doc])*
                #[serde(rename = $command)]
                $name($name),
            )*
        }

        impl $family {
            /// Every command of the family, in the order of the enum.
            pub const COMMANDS: &[&str] = &[$($command),*];

            /// The message's command.
            #[must_use]
            pub const fn command(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $command),*
                }
            }
        }

        $(
            impl From<$name> for $family {
                fn from(message: $name) -> Self {
                    Self::$name(message)
                }
            }

            $(#[$doc])*
            #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
            #[serde(deny_unknown_fields)]
            pub struct $name {
                $(
                    $(#[$needed_doc])*
                    pub $needed: $needed_type,
                )*
                $(
                    $(#[$may_doc])*
                    #[serde(
                        default,
                        deserialize_with = "crate::types::shared::present",
                        skip_serializing_if = "Option::is_none"
                    )]
                    pub $may: Option<$may_type>,
                )*
                /// Names this message: a UUID in lower case.
                #[serde(
                    default,
                    deserialize_with = "crate::types::shared::present",
                    skip_serializing_if = "Option::is_none"
                )]
                pub id: Option<String>,
                /// When the message was made, RFC 3339.
                #[serde(
                    default,
                    deserialize_with = "crate::types::shared::present",
                    skip_serializing_if = "Option::is_none"
                )]
                pub ts: Option<String>,
                /// The signature, and what else is said about the message.
                #[serde(
                    default,
                    deserialize_with = "crate::types::shared::present",
                    skip_serializing_if = "Option::is_none"
                )]
                pub meta: Option<crate::types::shared::Meta>,
            }
        )*
    };
}
