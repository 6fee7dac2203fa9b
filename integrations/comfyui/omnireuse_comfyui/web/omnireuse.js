// Text of the node Omnireuse summary after a run. ComfyUI's frontend draws the pictures of a node by itself, and no text.
import { app } from "../../scripts/app.js";
import { ComfyWidgets } from "../../scripts/widgets.js";

const SHOWN = "told";
const TEXT_HEIGHT = 110;

function show(node, text) {
  let widget = node.widgets?.find((each) => each.name === SHOWN);
  if (!widget) {
    widget = ComfyWidgets.STRING(node, SHOWN, ["STRING", { multiline: true }], app).widget;
    widget.options.read_only = true;
    widget.options.getMinHeight = () => TEXT_HEIGHT; // The frontend gives what is left to the picture.
    widget.serialize = false; // Neither in saved workflows,
    widget.options.serialize = false; // nor among the inputs of a run.
    if (widget.inputEl) widget.inputEl.readOnly = true;
  }
  widget.value = text;
  const [width, height] = node.computeSize();
  node.setSize?.([Math.max(node.size[0], width, 480), Math.max(node.size[1], height, 400)]);
  node.setDirtyCanvas?.(true, true);
}

app.registerExtension({
  name: "omnireuse.text",
  beforeRegisterNodeDef(nodeType, nodeData) {
    if (nodeData.name === "OmnireuseSummary") {
      const executed = nodeType.prototype.onExecuted;
      nodeType.prototype.onExecuted = function (message) {
        executed?.apply(this, arguments);
        if (message?.text) show(this, message.text.join("\n"));
      };
    }
  },
});
