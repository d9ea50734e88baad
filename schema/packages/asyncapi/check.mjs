// Does AsyncAPI's own parser accept asyncapi.json, with all its payloads?
//
// usage: node check.mjs <asyncapi.json>, from a folder in which @asyncapi/parser is installed
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.cwd(), "here.js"));
const { Parser, DiagnosticSeverity } = require("@asyncapi/parser");

const text = readFileSync(process.argv[2], "utf8");
const faultsOf = async (text) => {
  const { document, diagnostics } = await new Parser().parse(text);
  const faults = diagnostics.filter(({ severity }) => severity === DiagnosticSeverity.Error);
  return { document, faults, notes: diagnostics.length - faults.length };
};

const { document, faults, notes } = await faultsOf(text);
for (const { message, path } of faults) console.error(`${path.join("/")}: ${message}`);
const messages = document?.allMessages().all() ?? [];
const examples = messages.flatMap((message) => message.examples().all());
console.log(`asyncapi: ${messages.length} messages, ${examples.length} examples, ${faults.length} errors, ${notes} notes`);

// And it would say so if a payload were no schema.
const spoilt = JSON.parse(text);
spoilt.components.schemas["c2s.join"].required = "to";
const noticed = (await faultsOf(JSON.stringify(spoilt))).faults.length > 0;
if (!noticed) console.error("a payload that is no schema is not noticed");
process.exit(faults.length > 0 || messages.length !== 40 || examples.length < 80 || !noticed ? 1 : 0);
