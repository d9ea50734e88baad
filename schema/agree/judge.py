"""Judges every example with Python's jsonschema, from the plain files, from the bundles, and from the bundled files of one
message, in draft 2020-12 and in draft 07 (SCHEMA-2, SCHEMA-3, SCHEMA-4).

usage: judge.py <the schema folder> <what chat-schema exported> <a folder with messages and this crate's reports>
"""

import json
import sys
from pathlib import Path

from jsonschema import Draft7Validator, Draft202012Validator
from referencing import Registry, Resource

folder, exported, mutants = map(Path, sys.argv[1:4])


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def read(name):
    return load(folder / name)


names = ["message"]
for family in ("c2s", "s2c", "s2s"):
    files = sorted((folder / family).iterdir())
    names += [f"{family}/{file.name.removesuffix('.schema.json')}" for file in files]

schemas = {name: read(f"{name}.schema.json") for name in names}
registry = Registry().with_resources(
    (schema["$id"], Resource.from_contents(schema)) for schema in schemas.values()
).crawl()
# Without its optional package, jsonschema takes every text for a date-time and says nothing. The checker of draft 07
# does not know uuid; the pattern beside it says more.
for checker, formats in ((Draft202012Validator.FORMAT_CHECKER, ("date-time", "uuid")), (Draft7Validator.FORMAT_CHECKER, ("date-time",))):
    for format in formats:
        if format not in checker.checkers:
            sys.exit(f"the format {format} is not checked: a package is missing")


def pointer(path):
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def paths_of(errors):
    return {pointer(error.absolute_path) for error in errors}


def made(kind, schema, registry=Registry()):
    kind.check_schema(schema)
    return kind(schema, registry=registry, format_checker=kind.FORMAT_CHECKER)


def part(kind, document, keyword, name):
    """The message `name` of a bundle: nothing but a reference to it, and the bundle."""
    return made(kind, {"$ref": f"{document['$id']}#/{keyword}/{name.replace('/', '.')}"}, IN_A_BUNDLE[kind])


bundle = load(exported / "schema/bundle.schema.json")
flat = load(exported / "schema/draft-07/bundle.schema.json")
Draft202012Validator.check_schema(bundle)
Draft7Validator.check_schema(flat)
# Crawled once: else each `$ref` looks for its target in all of the document.
IN_A_BUNDLE = {
    kind: Registry().with_resource(document["$id"], Resource.from_contents(document)).crawl()
    for kind, document in ((Draft202012Validator, bundle), (Draft7Validator, flat))
}
# Every way to the schemas: from the name of a message to what judges it. The messages that differ in one place are
# asked about the first three ways; the other two say the same in files of their own.
WAYS = {
    "files": lambda name: made(Draft202012Validator, schemas[name], registry),
    "the bundle": lambda name: part(Draft202012Validator, bundle, "$defs", name),
    "the bundle of draft 07": lambda name: part(Draft7Validator, flat, "definitions", name),
    "one file a message": lambda name: made(Draft202012Validator, load(exported / f"bundled/{name}.schema.json")),
    "one file a message of draft 07": lambda name: made(
        Draft7Validator, load(exported / f"schema/draft-07/{name}.schema.json")
    ),
}
faults = []
fewest = None
for way, find in WAYS.items():
    judged = 0
    validators = {name: find(name) for name in names}
    for name, validator in validators.items():
        at = f"{way}: {name}"
        examples = read(f"examples/{name}.json")
        for example in examples["valid"]:
            judged += 1
            for error in validator.iter_errors(example["message"]):
                faults.append(f"{at}: {example['why']}: refused: {error.message[:200]}")
        for example in examples["invalid"]:
            judged += 1
            errors = list(validator.iter_errors(example["message"]))
            paths = paths_of(errors)
            keyword = example["keyword"]
            if way.endswith("07") and keyword == "dependentRequired":
                keyword = "dependencies"  # another word for it
            if paths != {example["path"]}:
                faults.append(f"{at}: {example['why']}: fails at {paths or 'nothing'}, not at {example['path']!r}")
            elif all(error.validator != keyword for error in errors):
                keywords = {error.validator for error in errors}
                faults.append(f"{at}: {example['why']}: fails by {keywords}, not by {keyword}")
    fewest = min(fewest or judged, judged)

    compared = 0
    for family in ("c2s", "s2c", "s2s"):
        if "one file" in way:
            break
        messages = (mutants / family).open(encoding="utf-8")
        reports = (mutants / f"{family}.reports").open(encoding="utf-8")
        for line, report in zip(messages, reports, strict=True):
            compared += 1
            message, report = json.loads(line), json.loads(report)
            ours = paths_of(validators[f"{family}/{message['command'].lower()}"].iter_errors(message))
            theirs = {violation["instance_path"] for violation in report.get("violations", [])}
            if ours != theirs:
                faults.append(
                    f"{way}: {line.strip()}: fails at {ours or 'nothing'}, for this crate at {theirs or 'nothing'}"
                )
    if "one file" not in way:
        fewest = min(fewest, compared)
    print(f"jsonschema, {way}: {judged} examples, {compared} messages compared")

for fault in faults[:20]:
    print(fault, file=sys.stderr)
print(f"jsonschema: {len(faults)} disagreements")
sys.exit(1 if faults or fewest < 600 else 0)
