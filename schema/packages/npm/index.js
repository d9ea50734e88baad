// The schemas as values. The bundles are made from the schema files when the package is built.
import bundle from "./bundle.js";
import draft07 from "./draft-07.js";

export { bundle, draft07 };

/** The `$id` under which a validator that was given `bundle` knows the schema of one message. */
export function idOf(family, command) {
  return new URL(`${family}/${command.toLowerCase()}.schema.json`, bundle.$id).href;
}
