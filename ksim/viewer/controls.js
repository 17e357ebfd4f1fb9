// Sends keys and gamepads to ksim, which viser's page does not. Runs before viser's own script.
(() => {
  const KEYS = {
    KeyW: { nudge: [0, 1] }, KeyS: { nudge: [0, -1] },
    KeyA: { nudge: [1, 1] }, KeyD: { nudge: [1, -1] },
    KeyQ: { nudge: [2, 1] }, KeyE: { nudge: [2, -1] },
    Space: { press: "zero" }, KeyR: { press: "reset" }, KeyP: { press: "push" }, KeyK: { press: "pause" },
  };
  // Of the standard layout: A, B, X, Start.
  const BUTTONS = { 0: "zero", 1: "reset", 2: "push", 9: "pause" };
  const DEAD_ZONE = 0.12, SEND_EVERY_MS = 50;
  let socket = null;

  const connect = () => {
    socket = new WebSocket(`${location.origin.replace(/^http/, "ws")}/ksim/controls`);
    socket.onclose = () => setTimeout(connect, 1000);
  };
  const send = (message) => socket?.readyState === WebSocket.OPEN && socket.send(JSON.stringify(message));
  connect();

  const isTyping = (element) => element?.closest?.("input, textarea, select, [contenteditable]") != null;
  // In the capturing phase: viser would move the camera by the same keys. The arrow keys stay the camera's.
  window.addEventListener("keydown", (event) => {
    const message = KEYS[event.code];
    if (!message || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    event.stopImmediatePropagation();
    event.preventDefault();  // space would press the focused button
    if (!event.repeat || message.nudge) send(message);
  }, { capture: true });

  let last = "[0,0,0]", pressed = {}, sent = 0;
  const axis = (value) => {
    const size = Math.max(0, (Math.abs(value ?? 0) - DEAD_ZONE) / (1 - DEAD_ZONE));
    return Math.round(-Math.sign(value ?? 0) * Math.min(1, size) * 100) / 100 + 0;
  };
  const readGamepad = (now) => {
    requestAnimationFrame(readGamepad);
    const pad = [...navigator.getGamepads()].find((candidate) => candidate?.connected);
    if (!pad) return;
    // Pushed forward and left are negative: forward, leftward, and the right stick to turn left.
    const axes = JSON.stringify([axis(pad.axes[1]), axis(pad.axes[0]), axis(pad.axes[2])]);
    if (axes !== last && now - sent > SEND_EVERY_MS && send({ axes: JSON.parse(axes) }) !== false) {
      last = axes;
      sent = now;
    }
    for (const [index, name] of Object.entries(BUTTONS)) {
      const isPressed = pad.buttons[index]?.pressed ?? false;
      if (isPressed && !pressed[index]) send({ press: name });
      pressed[index] = isPressed;
    }
  };
  requestAnimationFrame(readGamepad);
})();
