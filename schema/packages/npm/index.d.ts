export * from "./message.js";

/** A JSON Schema as a value. */
export interface SchemaDocument {
  $schema: string;
  $id: string;
  [keyword: string]: unknown;
}

/** All messages in one document of draft 2020-12; each file stands in it under an `$id` of its own. */
export declare const bundle: SchemaDocument;

/** The same in draft 07; each message is a member of `definitions`, such as `c2s.join`. */
export declare const draft07: SchemaDocument;

/** The `$id` under which a validator that was given `bundle` knows the schema of one message. */
export declare function idOf(family: "c2s" | "s2c" | "s2s", command: string): string;
