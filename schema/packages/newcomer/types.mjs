// Asks the TypeScript compiler about every example: a valid one must be accepted as its message and as a
// member of its family; an invalid one must be refused where types can see the fault (SCHEMA-4). Each
// valid one is then read, told apart by its command and written again.
//
// usage: node types.mjs, from a folder in which typescript and weir-schema are installed
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.cwd(), "here.js"));
const ts = require("typescript");
const root = join(process.cwd(), "node_modules/weir-schema");
const bundle = JSON.parse(readFileSync(join(root, "bundle.json"), "utf8"));
const names = Object.keys(bundle.$defs).filter((name) => name.includes("."));

/** Whether the types can know what is wrong. */
function visible({ message, path, keyword }) {
  switch (keyword) {
    case "additionalProperties":
    case "const":
    case "enum":
      return true;
    case "required":
      return message.meta?.sig === undefined; // what a signature needs, only the envelope says
    case "type": {
      const value = path.split("/").slice(1).reduce((value, step) => value[step], message);
      return typeof value !== "number" || Number.isInteger(value); // 1.5 is a number
    }
    case "not":
      return path === "/body" || path === "/params" || (path === "/to" && message.to !== undefined && absent(message));
    default:
      return false;
  }
}
const absent = ({ command }) => ["NICK", "QUIT", "PING", "PONG", "PUBKEY", "ERROR", "RELAY", "UNLINK"].includes(command);

const lines = [`import type { ${[...new Set(names.map(interfaceOf))].join(", ")}, C2S, S2C, S2S } from "weir-schema";`];
const expected = [null];
function interfaceOf(name) {
  const [family, command] = name.split(".");
  return family.toUpperCase() + command[0].toUpperCase() + command.slice(1);
}
for (const name of names) {
  const [family] = name.split(".");
  const { valid, invalid } = JSON.parse(readFileSync(join(root, `examples/${name.replace(".", "/")}.json`), "utf8"));
  const say = (type, example, fits) => {
    lines.push(`export const v${lines.length}: ${type} = ${JSON.stringify(example.message)};`);
    expected.push({ name, why: example.why, fits });
  };
  for (const example of valid) {
    say(interfaceOf(name), example, true);
    say(family.toUpperCase(), example, true);
  }
  for (const example of invalid) {
    // Undefined: what is wrong with a length or a pattern is not for types.
    say(interfaceOf(name), example, visible(example) ? false : undefined);
  }
}
writeFileSync("examples.ts", lines.join("\n") + "\n");

const program = ts.createProgram(["examples.ts"], {
  module: ts.ModuleKind.NodeNext, moduleResolution: ts.ModuleResolutionKind.NodeNext,
  target: ts.ScriptTarget.ES2022, strict: true, noEmit: true, types: [],
});
const refused = new Map();
for (const diagnostic of ts.getPreEmitDiagnostics(program)) {
  if (!diagnostic.file?.fileName.endsWith("examples.ts")) throw new Error(ts.flattenDiagnosticMessageText(diagnostic.messageText, "\n"));
  const { line } = diagnostic.file.getLineAndCharacterOfPosition(diagnostic.start);
  refused.set(line, ts.flattenDiagnosticMessageText(diagnostic.messageText, " "));
}
if (refused.has(0)) throw new Error(refused.get(0));
let faults = 0;
const count = { accepted: 0, refused: 0, beyond: 0 };
expected.forEach((example, line) => {
  if (!example) return;
  const { name, why, fits } = example;
  if (fits === true && refused.has(line)) {
    faults += 1;
    console.error(`${name}: ${why}: refused: ${refused.get(line)}`);
  } else if (fits === false && !refused.has(line)) {
    faults += 1;
    console.error(`${name}: ${why}: accepted`);
  }
  count[fits === true ? "accepted" : fits === false ? "refused" : "beyond"] += 1;
});
console.log(`typescript: ${count.accepted} accepted, ${count.refused} refused, ${count.beyond} whose fault no type can see, ${faults} disagreements`);
process.exit(faults > 0 || count.accepted < 250 || count.refused < 200 ? 1 : 0);
